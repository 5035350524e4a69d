"""Tries changes on a program that stays unedited: runs it again and again, unchanged and changed in turn, and compares."""
