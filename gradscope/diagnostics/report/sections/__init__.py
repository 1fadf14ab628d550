"""The sections of `gradscope report`: one file a question, each from what was read to sentences, charts and tables."""
