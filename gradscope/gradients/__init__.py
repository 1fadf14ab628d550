"""From a model and its rollouts to Gram matrices of gradients; with training the only package that uses torch.

``model`` loads a policy and runs it, ``plan`` turns logged rollouts into rows (:func:`prepare_step`), ``layers``
know what one call of a layer adds to each row, ``engines`` add rows up to Gram matrices, ``step`` measures
and checks one step (:func:`measure_step`), and ``tokens`` does so with single tokens as rows.
"""
