import pytest

from counterfoil.core.io import read_text_lines


def test_only_line_feeds_end_a_line(tmp_path):
    path = tmp_path / "x.txt"
    path.write_bytes("a\u2028b\x0bc\x85d\r\n\nlast".encode())
    assert read_text_lines(path, "captions") == ["a\u2028b\x0bc\x85d", "", "last"]


def test_byte_order_mark_is_no_word(tmp_path):
    path = tmp_path / "x.txt"
    path.write_bytes(b"\xef\xbb\xbfa dog\n")
    assert read_text_lines(path, "captions") == ["a dog"]


def test_bad_files_in_words(tmp_path):
    with pytest.raises(ValueError, match="does not exist; captions are needed there"):
        read_text_lines(tmp_path / "x.txt", "captions")
    (tmp_path / "x.txt").write_bytes(b"ol\xe9\n")
    with pytest.raises(ValueError, match=r"is not UTF-8 text \(byte 2 is 0xe9\)"):
        read_text_lines(tmp_path / "x.txt", "captions")
    with pytest.raises(ValueError, match="cannot be read"):
        read_text_lines(tmp_path, "captions")
