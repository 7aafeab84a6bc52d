"""The last stages of plans, as programmes and certificates go through them: the devices that they take."""
