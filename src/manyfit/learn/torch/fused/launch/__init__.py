"""Several steps of a group per launch: captured as a CUDA graph, compiled, with the rows on the device.

| module | content |
|---|---|
| `launcher` | training the next steps: which of them are launched together |
| `program` | what is done for one batch size: computed now, captured, or compiled |
| `feed` | the rows of the next steps |
| `slots` | the memory that a graph reads: rows, factors and keys of the next steps |
| `products` | matrix products that are computed in another way |
| `convolutions` | convolutions of several runs that are computed as products |
| `compiling` | a step as a graph of tensor operations, compiled and compared |
| `artifacts` | compiling a graph, or loading what was compiled before |
| `launched` | the losses of steps |
"""
