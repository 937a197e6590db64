"""A study of a few points, which differ in their learning rate."""


def points(lab, count=3, **options):
    lab.write(space={"train.optimizer.lr": {"linear": [0.1, 1.0], "points": count}}, **options)
