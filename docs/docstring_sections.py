"""Tells the reference which sections of docstrings hold examples and fields."""

import griffe


class Sections(griffe.Extension):
    """Griffe knows these sections by other names."""

    def on_object(self, *, obj, **kwargs):
        """Renames sections before they are read."""
        if obj.docstring is not None and not obj.is_alias:
            text = obj.docstring.value
            for ours, theirs in (("Example:", "Examples:"), ("Fields:", "Attributes:")):
                text = text.replace(f"\n{ours}\n", f"\n{theirs}\n")
            obj.docstring.value = text
