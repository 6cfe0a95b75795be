"""Fake tensors: a fast mode, rules of shapes and strides, the values that nodes carry."""
