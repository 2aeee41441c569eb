"""The forms of calling, as in `tests/policies`: conftest files cannot import each other by name."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

_path = Path(__file__).parents[1] / "policies" / "conftest.py"
_spec = spec_from_file_location("forms_of_calling", _path)
assert _spec is not None
assert _spec.loader is not None
_forms = module_from_spec(_spec)
sys.modules[_spec.name] = _forms  # dataclasses look their module up
_spec.loader.exec_module(_forms)

clock = _forms.clock
heard = _forms.heard
guarded = _forms.guarded
awaited = _forms.awaited
every_form = _forms.every_form
streamed = _forms.streamed
anew = _forms.anew
