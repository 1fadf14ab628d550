from __future__ import annotations

import numpy as np
import pytest
import torch

from gradscope.gradients.model.tokenize import token_sequences
from gradscope.gradients.plan.prepared_step import prepare_step
from gradscope.gradients.tokens.matrix_free import TokenProducts
from gradscope.gradients.tokens.measure import measure_tokens
from gradscope.metrics.gram.lanczos import matrix_free_spectrum
from gradscope.metrics.gram.spectrum import effective_rank, singular_values_from_gram
from tests.gradients.models import ARCHITECTURES, DAPO, measured_step, relative, tiny_groups, tiny_policy


def products_and_gram(policy, groups, batch_tokens=1000):
    (exact,) = measure_tokens(prepare_step(policy, groups, DAPO), measured_step(policy, groups, DAPO))
    sequences = token_sequences(policy, groups)
    return TokenProducts(policy.model, policy.trainable, sequences, exact.table.rows, 1.0, batch_tokens), exact.gram


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_products_are_those_of_the_gram_matrix(name, lora):
    product, gram = products_and_gram(tiny_policy(name, lora=lora), tiny_groups(1, 3))
    vectors = np.random.default_rng(0).normal(size=(3, len(gram)))
    assert relative(np.stack([product(vector) for vector in vectors]), vectors @ gram) < 1e-5


def test_batches_change_nothing():
    policy, groups = tiny_policy("gpt2_tied_conv1d", dtype=torch.float64), tiny_groups(1, 3)
    product, gram = products_and_gram(policy, groups, batch_tokens=1)
    vector = np.random.default_rng(0).normal(size=len(gram))
    assert relative(product(vector), gram @ vector) < 1e-12


def test_the_spectrum_needs_no_matrix():
    product, gram = products_and_gram(tiny_policy("llama_untied_biases"), tiny_groups(1, 6))
    values = singular_values_from_gram(gram)
    found = matrix_free_spectrum(product, len(gram), relative_error=1e-6)
    known = found.singular_values
    assert len(known) > 3
    assert np.all(np.abs(known - values[: len(known)]) <= found.bounds)
    assert found.effective_rank.low <= effective_rank(values).value <= found.effective_rank.high
