"""Writes the reference of the commands into docs/reference/cli.md, from the commands themselves."""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Iterator

import click
from generated import ROOT, wrapped, write

from planaria.ui.cli.main import cli

SCRIPT = "scripts/cli_reference.py"


def reference() -> str:
    """Returns a section for each command, in the order of `planaria --help`."""
    return "\n\n".join(_section(context) for context in _commands(click.Context(cli, info_name="planaria")))


def _commands(group: click.Context) -> Iterator[click.Context]:
    assert isinstance(group.command, click.Group)
    for name in group.command.list_commands(group):
        command = group.command.get_command(group, name)
        assert command is not None
        context = click.Context(command, info_name=name, parent=group)
        if isinstance(command, click.Group):
            yield from _commands(context)
        else:
            yield context


def _section(context: click.Context) -> str:
    """Returns what a command does, how it is called, and its options."""
    command = context.command
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    lines = [f"## {context.command_path}", "", "```", *wrapped(usage, width=100), "```", ""]
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        lines += [*_paragraph(paragraph), ""]
    options = [record for option in command.params if (record := option.get_help_record(context)) is not None]
    for names, help_text in options:
        lines += wrapped(f"**`{names}`** {_plain(help_text)}".replace("  [", " ["), "- ")
    return "\n".join(lines).strip()


def _paragraph(text: str) -> list[str]:
    """Returns a paragraph's lines; those that click is told to leave as they are (\\b) stand below their title."""
    kept, _, lines = text.partition("\b\n")
    if not lines:
        return wrapped(" ".join(_plain(kept).split()))
    title, *code = lines.splitlines()
    return [title.strip(), "", "```", *textwrap.dedent("\n".join(code)).splitlines(), "```"]


def _plain(text: str) -> str:
    """Returns a help text as Markdown that shows the same characters."""
    return text.replace("<", "\\<").replace("*", "\\*").strip()


def main() -> int:
    """Writes or checks the page."""
    return write(ROOT / "docs" / "reference" / "cli.md", SCRIPT, reference())


if __name__ == "__main__":
    sys.exit(main())
