"""Text of WMT14's lengths and frequencies, for a machine that has no corpus."""

import numpy as np

from annotated_transformer.batching import EncodedCorpus
from annotated_transformer.masks import BOS, EOS


def corpus(pairs: int, vocabulary: int) -> EncodedCorpus:
    """Make up a corpus that has a WMT14 corpus's lengths, and words as rare as real ones.

    The middle source of 10,000 WMT pairs has 27 tokens; logarithms of lengths scatter by 0.5, of
    their ratio by 0.25. The target says the source word by word, in the words of a dictionary.
    """
    rng = np.random.default_rng(0)
    dictionary = rng.permutation(np.arange(4, vocabulary))
    source = 27 * np.exp(0.5 * rng.standard_normal(pairs))
    target = source * np.exp(0.25 * rng.standard_normal(pairs))
    lengths = np.stack([source, target], axis=1).round().clip(2, 120).astype(np.int64)
    rows = list[np.ndarray]()
    for source_words, target_words in lengths - 1:  # without </s>
        # Zipf: the word of a rank has a share of 1 / rank
        ranks = (vocabulary - 4) ** rng.random(source_words) - 1
        words = ranks.astype(int)
        said = words[np.arange(target_words) * source_words // target_words]
        rows += [words + 4, np.array([EOS, BOS]), dictionary[said], np.array([EOS])]
    return EncodedCorpus(np.concatenate(rows).astype(np.int32), lengths)
