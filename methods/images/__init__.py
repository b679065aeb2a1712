"""Learning from images without captions or labels: unsupervised continual learning (BMU-MoCo, Table 4).

It follows divyam3897/UCL@cfaa81d, whose protocol that table has: a ResNet-18 trained by SimSiam or Barlow Twins
(`siamese.py`), alone or with SI, DER or LUMP, and evaluated by nearest neighbours (`knn.py`). A batch is
`ctvr.methods.base.Batch` whose frames are three pictures of each image: two augmented views and the plain one.
"""
