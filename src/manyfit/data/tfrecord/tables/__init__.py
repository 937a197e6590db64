"""Tables: data in other formats, as rows that are converted to TFRecord files.

| module | contents |
|---|---|
| `base` | the interface of all tables |
| `image_folder` | folders of images, one per class |
| `csv_file` | CSV files |
| `text_file` | text files and CSV columns, tokenized |
| `arrays` | `.npz`, `.npy` and HDF5 files |
"""
