"""The names of this package: kind, name, and the place that has it.

`counterfoil.core.registry` looks names up here, without importing what they stand for. A name is
what saved files and command lines say: where a class is moved, only its place changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

Kind = Literal[
    "model",
    "part",
    "loss",
    "source",
    "training",
    "scratch",
    "recipe",
    "loader",
    "reader",
    "features",
    "engine",
    "verb",
]
PAPERS = "counterfoil.papers"


def _at(module: str, *classes: str) -> dict[str, str]:
    """Classes of a module that files call by their own names."""
    return {name: f"{module}:{name}" for name in classes}


# kind -> name -> module:attribute
SHIPPED: Mapping[Kind, Mapping[str, str]] = {
    # what a saved model folder may name: classes; of other packages also functions that return a
    # `counterfoil.Model`
    "model": {
        "Adapted": "counterfoil.models.frozen:FrozenWithAdapters",
        "Adapters": "counterfoil.models.frozen:FrozenAdapters",
        "BLIP": "counterfoil.models.blip:BLIP",
        "CrossEncoderModel": "counterfoil.models.sentence_transformers:CrossEncoderModel",
        "DenseEmbedder": "counterfoil.models.sentence_transformers:DenseEmbedder",
        "DualEncoder": "counterfoil.models.clip:DualEncoder",
        "FILIP": "counterfoil.models.filip:FILIP",
        "MultiVectorEmbedder": "counterfoil.models.sentence_transformers:MultiVectorEmbedder",
        "OpenClip": "counterfoil.models.open_clip:OpenClipModel",
        "Vectors": "counterfoil.models.embeddings:EmbeddingModel",
        "VSE": "counterfoil.models.vsepp:VSEPP",
        "BFAN": "counterfoil.papers.models.bfan:BFAN",
        "CGMN": "counterfoil.papers.models.cgmn:CGMN",
        "CHAN": "counterfoil.papers.models.chan:CHAN",
        "DivE": "counterfoil.papers.models.dive:DivE",
        "ErnieViL": "counterfoil.papers.models.ernievil:ErnieViL",
        "ESA": "counterfoil.papers.models.esa:ESA",
        "GPO": "counterfoil.papers.models.gpo:GPO",
        "HREM": "counterfoil.papers.models.hrem:HREM",
        "LightningDOT": "counterfoil.papers.models.lightningdot:LightningDOT",
        "NAAF": "counterfoil.papers.models.naaf:NAAF",
        "SCAN": "counterfoil.papers.models.scan:SCAN",
        "SGRAF": "counterfoil.papers.models.sgraf:SGRAF",
        "UNITER": "counterfoil.papers.models.uniter:UNITER",
        "ViLT": "counterfoil.papers.models.vilt:ViLT",
        "VSRN": "counterfoil.papers.models.vsrn:VSRN",
        "XDim": "counterfoil.papers.models.xdim:XDim",
    },
    "part": {
        "Bert": "counterfoil.models.layers.pretrained:BertTextTower",
        "ClassHead": "counterfoil.models.layers.joint_encoder:ClassHead",
        "FrozenPatches": "counterfoil.models.layers.pretrained:FrozenPatches",
        "Grids": "counterfoil.models.layers.pretrained:TimmGridTower",
        "GRU": "counterfoil.models.layers.towers:GRU",
        "MLPRegions": "counterfoil.models.layers.towers:MLPRegions",
        "Patches": "counterfoil.models.layers.towers:PatchTower",
        "RegionDrop": "counterfoil.models.layers.towers:RegionDrop",
        "Regions": "counterfoil.models.layers.towers:Regions",
        "Residual": "counterfoil.models.layers.towers:ResidualBlock",
        "TiedHead": "counterfoil.models.layers.joint_encoder:TiedHead",
        "TimmModel": "counterfoil.models.layers.pretrained:TimmTower",
        "UniterHeads": "counterfoil.models.layers.joint_encoder:UniterHeads",
        "VisionModel": "counterfoil.models.layers.pretrained:HFVisionTower",
        "WordDrop": "counterfoil.models.layers.towers:WordDrop",
        "AttentionFiltration": "counterfoil.papers.models.sgraf:AttentionFiltration",
        "BatchGraph": "counterfoil.papers.models.hrem:BatchGraph",
        "Bottleneck": "counterfoil.papers.models.grid:Bottleneck",
        "BoxedRegions": "counterfoil.papers.models.uniter:RegionEmbedding",
        "Captioner": "counterfoil.papers.models.vsrn:Captioner",
        "CoLayer": "counterfoil.papers.models.ernievil:CoLayer",
        "Dependencies": "counterfoil.papers.models.xdim:Dependencies",
        "EnhancedRegions": "counterfoil.papers.models.user:EnhancedRegions",
        "External": "counterfoil.papers.models.esa:ExternalAttention",
        "FirstTokenTower": "counterfoil.papers.models.lightningdot:FirstTokenTower",
        "GeneralPool": "counterfoil.papers.models.gpo:GeneralizedPooling",
        "GlobalAndRegions": "counterfoil.papers.models.ernievil:GlobalAndRegions",
        "GlobalPool": "counterfoil.papers.models.sgraf:GlobalPool",
        "GraphLayer": "counterfoil.papers.models.cgmn:GraphLayer",
        "GraphReasoning": "counterfoil.papers.models.sgraf:GraphReasoning",
        "JointEncoder": "counterfoil.papers.models.uniter:JointEncoder",
        "JointLayer": "counterfoil.papers.models.uniter:JointLayer",
        "PartsTower": "counterfoil.papers.models.dive:PartsTower",
        "Perceptron": "counterfoil.papers.models.chan:FeedForward",
        "PieceEmbedding": "counterfoil.papers.models.uniter:WordPieceEmbedding",
        "PooledParts": "counterfoil.papers.models.dive:PooledParts",
        "Relation": "counterfoil.papers.models.vsrn:RegionRelation",
        "ResidualPool": "counterfoil.papers.models.hrem:ResidualPool",
        "ResnetGrids": "counterfoil.papers.models.grid:ResnetGridTower",
        "SelfAttention": "counterfoil.papers.models.chan:SelfAttention",
        "Slots": "counterfoil.papers.models.dive:SlotAttention",
        "StreamLayer": "counterfoil.papers.models.ernievil:StreamLayer",
        "TokenAndRegions": "counterfoil.papers.models.lightningdot:TokenAndRegions",
        "WordsAndStates": "counterfoil.papers.models.dive:WordsAndStates",
    },
    "loss": {
        **_at("counterfoil.losses.adapters", "MetricLearningLoss", "SentenceTransformersLoss"),
        **_at(
            "counterfoil.losses.aoq",
            *("AdaptiveQuintuplet", "OfflineQuintuplet", "OfflineTriplet", "OnlineQuintuplet"),
        ),
        **_at("counterfoil.losses.base", "WeightedSum"),
        **_at(
            "counterfoil.losses.contrastive",
            *("InfoNCELoss", "InfoNCEWithCandidatesLoss", "SigmoidLoss", "TripletCLIPLoss"),
        ),
        **_at("counterfoil.losses.ndgl", "HardNegativeRectificationLoss", "MarginDistillationLoss"),
        **_at("counterfoil.losses.queue", "MomentumQueueLoss", "UTOLoss"),
        **_at("counterfoil.losses.schedules", "LinearRamp", "StartAt", "SwitchAfter"),
        **_at(
            "counterfoil.losses.triplet",
            *("HardestTripletLoss", "MarginRankingLoss", "MeanTripletLoss"),
            *("SemiHardTripletLoss", "SumTripletLoss"),
        ),
        **_at(
            "counterfoil.papers.compared.losses",
            *("CircleLoss", "DistanceWeightedTripletLoss", "LSEHLoss", "SelfAdjustedCFMLoss"),
            *("SelfExpandingLoss", "SelfExploredCFMLoss"),
        ),
        **_at("counterfoil.papers.tags.losses", "WordLoss"),
    },
    # sources of negatives, and what their settings are made of
    "source": {
        **_at("counterfoil.data.phrases", "PhraseFile", "RulePhraseParser", "SpacyPhraseParser"),
        **_at("counterfoil.negatives.generated", "GeneratedCaptions"),
        **_at("counterfoil.negatives.momentum", "KeyQueue", "MomentumQueue"),
        **_at("counterfoil.negatives.online", "TopScoringMiner"),
        **_at("counterfoil.negatives.sampling", "CandidateConfig", "SamplingConfig"),
        **_at("counterfoil.negatives.similarity", "CaptionSimilarity"),
        **_at("counterfoil.negatives.teachers", "Mask", "TeacherEnsemble", "Teachers"),
        **_at("counterfoil.training.foils", "Foils"),
        **_at(
            "counterfoil.training.mined",
            *("Mined", "MinedBatches", "MinedNeighbours", "MinedTeacher"),
        ),
        **_at("counterfoil.papers.compared.counterfactual", "CounterfactualSampler"),
        **_at("counterfoil.papers.tags.generation", "TagsGenerator"),
        **_at("counterfoil.papers.tags.inputs", "CandidateFilter", "GeneratorInputs"),
    },
    # (FineTunedModel, TrainingOptions) -> stages that train a pretrained model
    "training": {
        "contrastive": "counterfoil.recipes.clip:contrastive_stages",
        "triplet": "counterfoil.recipes.clip:triplet_stages",
        "listwise": "counterfoil.recipes.clip:listwise_stages",
        "aoq": "counterfoil.papers.aoq.recipe:fine_tuning_stages",
        "ndgl": "counterfoil.papers.ndgl.recipe:fine_tuning_stages",
        "negclip": "counterfoil.papers.compared.negclip:fine_tuning_stages",
    },
    # `counterfoil.recipes.catalogue.ScratchModels`, of several models each
    "scratch": {"papers": "counterfoil.papers.photos:SCRATCH"},
    # functions with keyword arguments that return a Recipe, see `counterfoil.recipes.catalogue`
    "recipe": {
        "demo": "counterfoil.recipes.demo:demo_recipe",
        "online": "counterfoil.papers.online:online",
        "aoq": "counterfoil.papers.aoq.recipe:aoq",
        "ndgl": "counterfoil.papers.ndgl.recipe:ndgl",
        "tags": "counterfoil.papers.tags.recipe:tags",
        "tags-dc": "counterfoil.papers.tags.recipe:tags_dc",
        "tags-foils": "counterfoil.papers.tags.recipe:tags_foils",
        "vse-c": "counterfoil.papers.compared.vsec:vse_c",
        "negclip": "counterfoil.papers.compared.negclip:negclip",
        "graph": "counterfoil.papers.aoq.recipe:graph",
        "batches": "counterfoil.papers.aoq.recipe:batches",
        "queue": "counterfoil.papers.online:queue",
        "cascade": "counterfoil.papers.tags.recipe:cascade",
        "patches": "counterfoil.papers.photos:patches",
        "photos": "counterfoil.papers.photos:photos",
    },
    # (name, **options) -> Pretrained, by the prefix of a name, the library of a folder, or the
    # model_type in its config.json, see `counterfoil.loading`
    "loader": {
        "blip": "counterfoil.loading.converted:load_blip",
        "open_clip": "counterfoil.loading.open_clip:load_pair",
        "registered": "counterfoil.loading.registered:load_registered",
        "sentence_transformers": "counterfoil.loading.sentence_transformers:load_embedder",
        "timm": "counterfoil.loading.timm:load_towers",
        "transformers": "counterfoil.loading.transformers:load_pair",
        "vilt": "counterfoil.papers.models.vilt:load_vilt",
    },
    # Format, under the pattern of a file by which folders of this format are known
    "reader": {
        "*_caps.txt": "counterfoil.papers.readers.precomp:FORMAT",
        "*_ims*.npy": "counterfoil.papers.readers.precomp:FORMAT",
        "precomp/*_ims*.npy": "counterfoil.papers.readers.precomp:FORMAT",
        "txt2img.json": "counterfoil.papers.readers.uniter:FORMAT",
        "*/txt2img.json": "counterfoil.papers.readers.uniter:FORMAT",
    },
    # FeatureFormat
    "features": {
        "precomp": "counterfoil.papers.readers.precomp:FEATURES",
        "img_db": "counterfoil.papers.readers.uniter:DATABASE",
        "detections": "counterfoil.papers.readers.uniter:DETECTIONS",
    },
    # `counterfoil.search.ann.Engine`
    "engine": {
        "faiss-hnsw": "counterfoil.search.ann:FAISS_HNSW",
        "faiss-ivf-pq": "counterfoil.search.ann:FAISS_IVF_PQ",
        "milvus": "counterfoil.search.ann:MILVUS",
    },
    # a Typer whose commands, or whose group if it is named, are the verb; the help has this order
    "verb": {
        "demo": "counterfoil.cli.run:app",
        "data": "counterfoil.cli.data:app",
        "audit": "counterfoil.cli.audit:app",
        "evaluate": "counterfoil.cli.evaluate:app",
        "advice": "counterfoil.cli.advice:app",
        "train": "counterfoil.cli.train:app",
        "mine": "counterfoil.cli.mine:app",
        "judge": "counterfoil.cli.mine:app",
        "diagnose": "counterfoil.cli.negatives:diagnose_app",
        "negatives": "counterfoil.cli.negatives:app",
        "report": "counterfoil.cli.run:app",
        "explain": "counterfoil.cli.explain:app",
        "foils": "counterfoil.cli.foils:app",
        "index": "counterfoil.cli.index:app",
        "search": "counterfoil.cli.search:app",
        "serve": "counterfoil.cli.serve:app",
        **dict.fromkeys(
            ("export", "interpolate", "encode", "features", "cache"), "counterfoil.cli.models:app"
        ),
        **dict.fromkeys(("plan", "run"), "counterfoil.cli.run:app"),
        "papers": "counterfoil.papers.cli:app",
    },
}
assert set(SHIPPED) == set(get_args(Kind))
