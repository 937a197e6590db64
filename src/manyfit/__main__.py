"""`python -m manyfit`."""

from manyfit.cli import main

if __name__ == "__main__":
    main()
