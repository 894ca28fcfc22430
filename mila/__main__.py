"""``python -m mila``: the command line."""

from mila.cli.main import main

if __name__ == "__main__":
    main()
