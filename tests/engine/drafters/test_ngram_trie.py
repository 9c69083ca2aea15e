"""The trie of n-grams: counts, suffixes, and what goes when it is full."""

from engine.drafters.ngram_trie import NgramTrie, TrieNode


def strings(trie: NgramTrie) -> dict[tuple[int, ...], int]:
    """Every string in the trie, and its count."""
    found: dict[tuple[int, ...], int] = {}

    def walk(node: TrieNode, path: tuple[int, ...]) -> None:
        for token, child in node.children.items():
            found[*path, token] = child.count
            walk(child, (*path, token))

    walk(trie.root, ())
    return found


def test_a_string_is_counted_with_every_n_gram_that_begins_with_it() -> None:
    trie = NgramTrie(100)
    for ngram in ([1, 2, 3], [1, 2, 4], [1, 2, 3]):
        trie.insert(ngram)
    assert strings(trie) == {(1,): 3, (1, 2): 3, (1, 2, 3): 2, (1, 2, 4): 1}
    assert len(trie) == 4


def test_suffixes_are_found_longest_first() -> None:
    trie = NgramTrie(100)
    for ngram in ([1, 2, 3], [2, 3, 4], [3, 4, 5]):
        trie.insert(ngram)
    found = list(trie.suffixes([9, 1, 2, 3], shortest=1))
    assert [(node.depth, node.token) for node in found] == [(3, 3), (2, 3), (1, 3)]
    assert [node.depth for node in trie.suffixes([1, 2, 3], shortest=2)] == [3, 2]
    assert list(trie.suffixes([8], shortest=1)) == []


def test_what_was_not_used_for_longest_goes_first_and_from_its_end() -> None:
    trie = NgramTrie(6)
    trie.insert([1, 2, 3])
    trie.insert([4, 5, 6])
    trie.insert([7])
    assert strings(trie).keys() == {(1,), (1, 2), (4,), (4, 5), (4, 5, 6), (7,)}
    list(trie.suffixes([1, 2], shortest=2))  # uses 1 2, but not 4
    trie.insert([8, 9])
    assert strings(trie).keys() == {(1,), (1, 2), (4,), (7,), (8,), (8, 9)}
    assert len(trie) == 6
