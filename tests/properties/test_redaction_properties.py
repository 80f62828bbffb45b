"""Whatever key material looks like, it does not get through; whatever a text looks like, it can be cleaned."""

import base64
import string

from hypothesis import assume, given
from hypothesis import strategies as st

from cozystack_iac.redaction import clean


@given(st.binary(min_size=32, max_size=96), st.sampled_from(["{}", "key is {}.", "a: '{}',", 'x="{}"', "[{}]"]))
def test_random_bytes_in_base64_never_get_through(data: bytes, around: str) -> None:
    encoded = base64.b64encode(data).decode()
    assume(len(set(encoded)) >= 24)  # a run of zeros is no key
    assert encoded not in clean(around.format(encoded))


@given(st.text(alphabet=string.printable, max_size=400))
def test_cleaning_is_total_and_cleaning_twice_changes_nothing(text: str) -> None:
    once = clean(text)

    assert clean(once) == once
