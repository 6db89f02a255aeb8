"""Emulated devices: numbers that tell whether routes were kept, and time that passes as a profile says.

numbers  a model of checksums · time: waits, and links with a profile's speed
"""
