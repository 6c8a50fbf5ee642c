"""`python -m witness` is `witness`."""

from witness.cli import main

if __name__ == "__main__":
    main()
