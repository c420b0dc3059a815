"""A page on which people answer questions about unknown labels.

`answers` keeps what they said, `results` says what that comes to, `desk` hands out questions, `views` draws
images, `access` decides who may ask, and `app` is the page itself.
"""
