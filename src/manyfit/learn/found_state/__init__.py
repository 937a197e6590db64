"""The state of a user's object, found by looking at it.

| module | contents |
|---|---|
| `state` | the state of an object: what has changed since it was made |
| `survey` | one look at an object |
| `generators` | objects that can return their state, and random generators |
| `values` | plain values in a checkpoint |
| `hidden` | state that cannot be kept, such as that of closures |
"""
