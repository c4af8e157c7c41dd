"""Stages of a data set, found by trying: how data are read, and what suits them.

data             a recipe from a data file alone
dataset_names    datasets in a file of no known format
orientation      the detector's orientation to its scan
deciding         a recipe with stages from one that leaves them open
sweeps           the budget
stage_search     the search for the stages, question by question
search           its base: the recipe so far, the budget, the reasons
optics           defocus or distance
near_field       far field or near field, and its distance
reading          comparison of other ways to read a scan
readings         the list of these
hypotheses       the list of changes of the model
epoch_search     numbers of epochs of the stages
candidates       candidates that continue one estimate, and what runs them
recipe_text      the recipe as text, with the reasons as comments
python           the same in one call
"""
