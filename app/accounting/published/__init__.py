"""The papers' own bounds as accountants, to compare with; ours certify what they can."""
