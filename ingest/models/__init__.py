"""Well-known networks as plain torch modules, for ``module:function`` specifications.

Every public function, for example :func:`ingest.models.vgg.vgg16`, takes no arguments and returns the module and
a tuple of example inputs. Call it under ``torch.device("meta")`` and not a byte of weights is allocated.
Importing this package imports no torch; importing one of its modules does.
"""
