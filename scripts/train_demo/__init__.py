"""Trains the demo checkpoint on synthetic speech: flite is the teacher, pocketsphinx measures the result.

phones, lexicon.txt     words to sounds           sentences  the texts       teacher  the voice, flite
corpus   -> shards      codes  -> four numbers per step
train_vocos, train_dvae, train_gpt  -> weights    (network, loop, batches: shared by them)
export   -> a checkpoint in ChatTTS's layout      recogniser, ../evaluate  -> word error rates

python -m scripts.train_demo.corpus      work/corpus --shards 20
python -m scripts.train_demo.train_vocos work --steps 3000
python -m scripts.train_demo.train_dvae  work --steps 1500
python -m scripts.train_demo.train_gpt   work --tokens 12e6 --compile
python -m scripts.train_demo.export      work OUT
chattts-serve judge --local --checkpoint OUT --show
"""
