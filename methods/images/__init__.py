"""Unsupervised continual learning from images without captions or labels (BMU-MoCo, Table 4).

The protocol is that of divyam3897/UCL@cfaa81d, which the table uses. A ResNet-18 is trained by SimSiam or Barlow Twins
(`siamese.py`), alone or with SI, DER or LUMP, and evaluated by a nearest-neighbors classifier (`knn.py`). A batch is a
`ctvr.methods.base.Batch` whose frames are three versions of each image: two augmented views and the plain image.
"""
