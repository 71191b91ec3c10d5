"""Trains the demo checkpoint on the speech of Kokoro-82M, a neural teacher; README.md tells how to go on.

prose, assignments, sounds, teacher_phones, syllables, tokens -> plan: what is read, by whom, and its tokens
kokoro, graph -> read_plan: the recordings          bank, codes, features: batches of them, on one device
network, vocoder, dvae: the networks                 muon, adversarial, training: how they learn
train_vocoder, train_gpt, train_joint, train_dvae -> export: a checkpoint in ChatTTS's layout
pronunciations, letter_sounds: words to phones, for export
held_out, sentences, recogniser, syllable_recogniser -> ../evaluate: word error rates
"""
