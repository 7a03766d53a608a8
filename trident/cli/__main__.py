"""`python -m trident.cli`: the command without its script."""

from trident.cli import main

if __name__ == "__main__":
    main()
