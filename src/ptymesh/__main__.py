"""`python -m ptymesh`: the command line; also what the launcher starts on every rank."""

from ptymesh.cli.main import main
from ptymesh.parallel.child import settle

if __name__ == "__main__":
    settle()
    main()
