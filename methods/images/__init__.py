"""Learning from images without captions or labels: unsupervised continual learning (BMU-MoCo, Table 4).

What divyam3897/UCL@cfaa81d computes, whose protocol that table has: a ResNet-18 under SimSiam or Barlow Twins
(`siamese.py`), alone or held by SI, DER or LUMP, and judged by its nearest neighbours (`knn.py`). A batch is
`ctvr.methods.base.Batch` whose frames are three pictures of each image: two augmented views and the plain one.
"""
