"""`tcc completion`."""

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Prints the script that completes command lines of tcc in SHELL.

    \b
    Example:
      tcc completion bash >> ~/.bashrc
      tcc completion zsh >> ~/.zshrc
      tcc completion fish > ~/.config/fish/completions/tcc.fish
    """
    script = get_completion_class(shell)
    assert script is not None, "click has the shells of the choice"
    root = ctx.find_root()
    click.echo(script(root.command, {}, "tcc", "_TCC_COMPLETE").source())
