"""Ready data classes for a user's own files: tables, folders of images, text, HDF5 and LMDB."""
