"""`python -m tcc`, for machines where another program is called tcc."""

from tcc.cli.commands import main

main()
