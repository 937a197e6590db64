"""TFRecord files, read and written without TensorFlow.

| module | contents |
|---|---|
| `files` | file patterns, local and remote paths, local copies of remote files |
| `streams`, `detection` | the bytes of a file, decompressed; recognizing record files and their compression |
| `frames` | the framing of records: lengths and checksums |
| `message`, `wire`, `lists` | `tf.train.Example`: parsing one message, many records at once, and the values |
| `features`, `fill_values`, `images` | feature types, their fill values, and image decoding |
| `ragged` | rows of different lengths |
| `metadata` | the index of a folder, `_tfrecord_metadata.json` |
| `verification`, `indexing` | comparing files with the index; indexing files |
| `records`, `columns` | the records of a data set by number; a cache of decoded columns |
| `writer`, `convert`, `tables` | writing records, and converting images, CSV, text and arrays |
| `errors` | errors in record files |
"""
