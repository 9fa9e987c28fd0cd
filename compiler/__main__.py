"""`python -m tcc`, for machines where another program is called tcc."""

from tcc.cli import main

main()
