package compat
