"""How Sphinx makes the site: `make docs`, then open site/index.html. Nothing of it is fetched from a network."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).with_name("extensions")))

project = "ptymesh"
author = "the authors of ptymesh"
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "commands",
    "docstrings",
    "equations",
]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4
# {include} of CHANGELOG.md and CONTRIBUTING.md: they are pages of the folder above
exclude_patterns = ["extensions"]

html_theme = "furo"
html_title = "ptymesh"
html_math_renderer = "mathml"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#14557b", "color-brand-content": "#14557b"},
    "dark_css_variables": {"color-brand-primary": "#7cc4ee", "color-brand-content": "#7cc4ee"},
}
pygments_style = "friendly"
pygments_dark_style = "monokai"
copybutton_prompt_text = "$ "

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # shapes and units stand in the docstrings
autodoc_preserve_defaults = True
napoleon_use_rtype = False
napoleon_use_ivar = True  # attributes as a list, like parameters
napoleon_custom_sections = [("Fields", "params_style")]
