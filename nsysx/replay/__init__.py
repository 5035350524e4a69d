"""The recorded steady steps run again, unchanged and with edits: what a change would be worth."""
