"""Trains the demo checkpoint on synthetic speech: flite is the teacher, pocketsphinx measures the result.

sentences, english_texts, mandarin_texts  -> texts     held_out  the sentences that are judged
teacher, mandarin_teacher  the voices                  phones, syllables, pieces  sounds and their tokens
corpus   -> shards                                     codes  -> four numbers per step
train_vocos, train_dvae, train_gpt  -> weights         (network, dvae, muon, loop, batches, warm_start: shared by them)
pronunciations, letter_sounds  -> words to phones      export  -> a checkpoint in ChatTTS's layout
kokoro, sounds, prose -> recordings -> train_vocoder  the next voice, taught by a neural teacher
recogniser, ../evaluate  -> word error rates           README.md  how to go on
"""
