"""Settings of the documentation site; `make docs` builds it. Whatever does not resolve is an error there."""

from __future__ import annotations

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

import planaria

project = "Planaria"
author = "The Planaria authors"
project_copyright = "The Planaria authors"
release = planaria.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"Planaria {release}"

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence", "deflist"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
napoleon_use_ivar = True

# Types of the standard library, of packages, and of modules that the reference does not show have no page to lead to.
nitpick_ignore_regex = [(r"py:.*", r"(?!planaria\.api\.).*")]


def setup(app: Sphinx) -> None:
    """Shows state diagrams as text: they are drawn where Markdown knows mermaid."""
    app.add_lexer("mermaid", TextLexer)
