"""homodyne-dask completion: what a shell reads to complete commands and options."""

import click
from click.shell_completion import get_completion_class

from homodyne_dask.cli.printing import echo

NAME = "homodyne-dask"
VARIABLE = "_HOMODYNE_DASK_COMPLETE"
"""In the environment of this program when a shell asks it for completions; Click takes its name from "
"ours."""


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that makes a shell complete commands, options and file names with the Tab key.

    \b
    homodyne-dask completion bash >> ~/.bashrc
    homodyne-dask completion zsh >> ~/.zshrc       # after compinit
    homodyne-dask completion fish > ~/.config/fish/completions/homodyne-dask.fish
    """
    of_shell = get_completion_class(shell)
    assert of_shell is not None
    program = click.get_current_context().find_root().command
    echo(of_shell(program, {}, NAME, VARIABLE).source())
