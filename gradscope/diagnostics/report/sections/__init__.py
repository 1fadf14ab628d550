"""The sections of `gradscope report`: one function a question, from what was read to sentences, charts and tables."""
