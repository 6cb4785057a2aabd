import subprocess
import unittest


def words(text):
    return int(subprocess.run(["./wordcount"], input=text, capture_output=True, text=True, check=True).stdout)


class WordCount(unittest.TestCase):
    def test_empty(self):
        self.assertEqual(words(""), 0)

    def test_spaces(self):
        self.assertEqual(words("  one two\tthree\n\nfour "), 4)

    def test_large(self):
        self.assertEqual(words("a b " * 100_000), 200_000)


if __name__ == "__main__":
    unittest.main()
