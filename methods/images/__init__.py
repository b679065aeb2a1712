"""Unsupervised continual learning from images without captions or labels (BMU-MoCo, Table 4).

It follows divyam3897/UCL@cfaa81d, whose protocol that table uses: a ResNet-18 is trained by SimSiam or Barlow Twins
(`siamese.py`), alone or with SI, DER or LUMP, and evaluated by its nearest neighbors (`knn.py`). A batch is a
`ctvr.methods.base.Batch` whose frames are three versions of each image: two augmented views and the plain image.
"""
