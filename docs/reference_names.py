"""Lists what the package exports on the page that asks for it, so that no name is forgotten."""

import types

import zephon_jax


def on_page_markdown(markdown, **kwargs):
    """Puts an entry for every public name but the modules in place of a comment."""
    values = {name: getattr(zephon_jax, name) for name in sorted(zephon_jax.__all__)}
    entries = [
        f"::: {value.__module__}.{name}\n"
        for name, value in values.items()
        if not isinstance(value, types.ModuleType)
    ]
    return markdown.replace("<!-- every public name -->", "\n".join(entries))
