"""`python -m trident.cli`: the command without its script."""

from trident.cli.app import main

if __name__ == "__main__":
    main()
