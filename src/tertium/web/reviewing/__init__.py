"""A page on which people answer questions about unknown labels.

`answers` keeps what they said, `results` says what that comes to, `summary` how far they agree and what the
next answers will bring, `desk` hands out questions, `views` draws images, `access` decides who may ask, and
`app` is the page itself.
"""
