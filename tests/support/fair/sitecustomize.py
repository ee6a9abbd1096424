"""Processes of tested services define models as tests in one process do (``tests/support/splits``).

Python imports this by itself where the folder is on ``PYTHONPATH``. Else a test that names a person
would now and then name one whom the model has held out.
"""

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

_PATCHED = "app.ledger.models.definitions"


class _Finder:
    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != _PATCHED:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        execute = spec.loader.exec_module

        def patched(module: ModuleType) -> None:
            execute(module)
            real = module.define_model

            def fairly(*given: object, **more: object) -> object:
                from tests.support.splits import fairly_split

                return fairly_split(real)(*given, **more)

            module.define_model = fairly

        spec.loader.exec_module = patched
        return spec


sys.meta_path.insert(0, _Finder())
