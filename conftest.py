"""Examples of public classes run where they are written.

Public classes say that they are of `zephon_jax`, so that a pickle holds nothing of how the package
is laid out. doctest takes a class for an imported one if it is not of the module that it looks at,
and would leave out the examples of all of them.
"""

import doctest
import inspect
import re

_from_module = doctest.DocTestFinder._from_module


def _is_written_in(finder, module, value):
    if inspect.isclass(value) and value.__module__ == "zephon_jax" and module is not None:
        return bool(re.search(rf"^class {value.__name__}\b", inspect.getsource(module), re.M))
    return _from_module(finder, module, value)


doctest.DocTestFinder._from_module = _is_written_in
